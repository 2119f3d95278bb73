"""At most 300 faults that were real or nearly so, each of which a test must detect.

There is a file of YAML for each room of the house. `make mutate` makes mutants by itself.
"""
