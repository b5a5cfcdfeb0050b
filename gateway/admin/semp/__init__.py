"""The administration in the shape of Solace's SEMP version 2.

Three trees of resources, ``config``, ``action`` and ``monitor``, answer with the same ``envelope``; lists are cut by
``paging``. ``operations`` puts all of them on the application, ``tree`` says how one is declared. Attributes have
Solace's names where Solace has the attribute. Ours beside them are in the OpenAPI document.
"""
