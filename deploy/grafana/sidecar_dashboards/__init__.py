"""Both dashboards as code: `queries` has what is asked, `panels` how it looks; the rest, what stands where."""
