"""The administration in the shape of Solace's SEMP version 2: one module a kind of resource.

Three trees of resources, ``config``, ``action`` and ``monitor``, answer with the same ``envelope``; lists are cut by
``paging``; ``resources`` finds what a request is about. Attributes have Solace's names where Solace has the attribute.
Ours beside them are in the OpenAPI document.
"""
