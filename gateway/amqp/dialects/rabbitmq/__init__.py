"""What the commands of RabbitMQ's clients do here."""
