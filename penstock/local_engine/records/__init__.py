"""Sources of records that may be unreadable: files of CSV or JSON lines, and topics of Kafka."""
