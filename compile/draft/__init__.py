"""`bringup init`: a draft of graph, adapter, dialect and test, from a checkpoint's names, shapes and config."""
