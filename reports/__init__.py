"""The HTML pages that steps write: their templates, their style and what renders them."""
