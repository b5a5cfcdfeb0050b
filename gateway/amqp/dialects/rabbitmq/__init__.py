"""RabbitMQ's dialect."""
