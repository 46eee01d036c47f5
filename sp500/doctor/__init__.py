"""Problems of this machine and its clusters: facts are gathered at the edge and judged by pure functions."""
