"""Functions of one library, and the functions derived from them, for the backends that embed them."""
