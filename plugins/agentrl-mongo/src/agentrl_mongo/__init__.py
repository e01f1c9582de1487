"""Store of agentrl in a MongoDB server, with the driver motor or its successor, `pymongo.AsyncMongoClient`."""
