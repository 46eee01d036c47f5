"""Jobs: an argv and a resource request, described once and rendered for where it runs. Knows no science."""
