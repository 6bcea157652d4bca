"""A module per command of `hadron`, and one for each of what some are made of. Nothing is imported
before it is called: `root` has their names."""
