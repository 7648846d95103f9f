"""The recurrence over a sequence whose time is split over processes."""
