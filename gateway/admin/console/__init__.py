"""The console: a page, served at the administration's address, that shows what the gateway does and has it done.

``routes`` serves the page and its files, which are ES modules that a browser loads as they lie in ``static/``: there is
no build, and nothing comes from elsewhere. The page asks the administration for everything, as any program may. The
libraries in ``static/vendor/`` are fetched by ``.build/vendor.py``, with their licences and hashes.
"""
