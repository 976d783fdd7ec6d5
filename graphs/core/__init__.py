"""The type system: named axes, modules, their parameters, graphs and signatures."""
