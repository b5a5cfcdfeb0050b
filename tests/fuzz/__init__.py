"""
Structured random inputs for a live gateway, for as long as wanted, next to a well-behaved client that must not notice.

``./run soak fuzz`` is the command. ``made`` makes inputs, each a function of its kind, a seed and a number; ``driver``
sends them, many on a connection; ``campaign`` starts gateways, watches them, and writes down what it finds.
"""
