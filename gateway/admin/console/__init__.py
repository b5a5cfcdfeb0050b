"""The console: a page, served at the administration's address, that shows what the gateway does and has it done.

``routes`` serves the page and its files: ES modules that a browser loads as they are in ``static/``. There is no build
step, and nothing is loaded from other hosts. The page uses only operations of the administration that any program may
use. ``.build/vendor.py`` fetches the libraries in ``static/vendor/``, with their licences and hashes.
"""
