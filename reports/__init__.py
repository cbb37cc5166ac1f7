"""HTML pages of the steps: charts, templates and rendering."""
