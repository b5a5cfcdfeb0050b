"""The administration in the shape of Solace's SEMP version 2: one module a kind of resource.

Three trees of resources, ``config``, ``action`` and ``monitor``, answer with the same ``envelope``; ``paging`` divides
lists into pages; ``resources`` finds the object of a request. Attributes have Solace's names where Solace has the
attribute. The OpenAPI document lists them together with our own.
"""
