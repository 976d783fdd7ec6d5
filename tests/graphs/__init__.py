"""The type system, modules, operations and the registry of families."""
