"""Resources under ``/SEMP/v2``: one file a kind of resource, with its operations in each tree."""
