"""Decode binary values of Kafka records (Avro and Protobuf) to Arrow, with schema registries."""
