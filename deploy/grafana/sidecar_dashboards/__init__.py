"""Define both dashboards as code. `queries` has the PromQL, `panels` the kinds of panels, other modules the layout."""
