"""
A blocking AMQP 1.0 client over proton's C engine, for messages as encoded bytes.

Reading order: ``wire`` (the address, and a connection with a session), ``links`` (a receiver and a sender). Nothing
here needs Spark.
"""
