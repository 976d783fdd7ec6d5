"""Programs, bundles, verification and bisection."""
