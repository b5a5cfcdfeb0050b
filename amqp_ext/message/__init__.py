"""An encoded message and its sections: found, read and annotated without being encoded again."""
