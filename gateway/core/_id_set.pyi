class IdSet(set[bytes]):
    """What ``_id_set.c`` has of a set, and of that lists alone: nothing else is to be asked of it."""
