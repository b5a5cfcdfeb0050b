"""History and publishing for programs without AMQP: ``GET /v1/log`` and ``POST /v1/publish``.

A request has the rights that its user has on an AMQP connection. While it lasts it counts as a client: in the limits
on connections (of the gateway, of its IP address, of its user), in the ledger, and in the list of clients
(``gateway.admin.administered_gateway``).
"""
