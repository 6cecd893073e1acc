"""Views of ``kubectl inspect cgpu``: a module per table or document."""
