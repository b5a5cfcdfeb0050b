class IdSet(set[bytes]):
    """The set methods that ``_id_set.c`` has, with lists as arguments. Use no other method of a set."""
