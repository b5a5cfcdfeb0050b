"""
Inputs made by structure, sent to a live gateway for as long as one likes, beside a client that must not notice.

``./run soak fuzz`` is the verb. ``made`` makes inputs, each a function of its kind, a seed and a number; ``playing``
sends them, many to a connection; ``campaign`` starts gateways, watches them, and writes down what it finds.
"""
