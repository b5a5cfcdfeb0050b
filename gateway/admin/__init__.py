"""Administration over HTTP, in the event loop of the gateway.

`http` serves it. What an administrator asks for goes through the same core as what a client asks for; this
package may import `gateway.core` and below, and is imported by `gateway.app` alone.
"""
