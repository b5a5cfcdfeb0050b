"""
A blocking AMQP 1.0 client over proton's C engine, for messages as encoded bytes.

Reading order: ``broker`` (the address), ``wire`` (a connection with a session), ``links`` (a receiver and a sender),
``sasl_client`` (the login). Nothing here needs Spark.
"""
