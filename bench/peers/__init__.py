"""The peers that Viewtide is measured against, each in the setting that is best for it and equally durable."""
