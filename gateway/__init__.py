def version() -> str | None:
    """The version that is installed; None where it runs from a checkout alone."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("rewind-gateway")
    except PackageNotFoundError:
        return None
