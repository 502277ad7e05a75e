"""The charts of the page as data, drawn by uPlot in a browser, and as SVG in print and without JavaScript."""
