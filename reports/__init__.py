"""Templates of the HTML pages that steps write."""
