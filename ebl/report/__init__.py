"""Reports: tables beside the paper's, curves, lessons, as Markdown, CSV, LaTeX and one HTML page."""
