"""Records of Kafka, as Spark's connector gives them, as rows."""
