"""The equations of a traced program."""


def equations(jaxpr, times=1):
    """Yields the equations of a program, and how often each runs."""
    for equation in jaxpr.eqns:
        yield times, equation
        inner = times * equation.params.get("length", 1)
        for parts in equation.params.values():
            for part in parts if isinstance(parts, tuple | list) else (parts,):
                if hasattr(program := getattr(part, "jaxpr", part), "eqns"):
                    yield from equations(program, inner)
