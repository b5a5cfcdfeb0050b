"""What a Message VPN does by itself: trimming, expiry, dead letters, alarms."""
