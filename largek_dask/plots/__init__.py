"""Charts, reports and text summaries of fits."""
