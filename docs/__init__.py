"""The pages of the documentation, and the generator of its references (`docs.generator`)."""
