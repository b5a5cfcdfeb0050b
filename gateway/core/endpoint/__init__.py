"""Queues, topic endpoints and streams: their ready messages, their consumers, and the order of delivery."""
