"""History and publishing for programs without AMQP: ``GET /v1/log`` and ``POST /v1/publish``.

The user is one as on the wire, with the rights of an AMQP client that does the same, and counts as a client: among the
connections of all, of its address and of its user, in the ledger, and in the list of clients
(``gateway.admin.administered_gateway``).
"""
