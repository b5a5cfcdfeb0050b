"""History and publishing for programs without AMQP: ``GET /v1/log`` and ``POST /v1/publish``.

Who asks is a user as on the wire, with the rights of an AMQP client that does the same, and counts as one: among the
connections of all, of its address and of its user, in the ledger, and in the list of clients. ``clients`` has those
that are there, ``log_routes``, ``log_answer`` and ``log_stream`` read, ``publish_routes`` and ``submission`` publish.
"""
