"""The generator of the documentation's pages: `python -m docs.generator FOLDER`, as in `make docs`.

The pages in docs/ are written by hand. This package adds the pages that repeat what stands in the
code: the paper index and the reference of phases (docstrings), the reference of the configuration
(the YAML files with their comments), the commands, and the Python reference. Nothing generated is
committed. The output is plain Markdown and one mkdocs.yml, which Zensical, MkDocs and ProperDocs
all read.
"""
