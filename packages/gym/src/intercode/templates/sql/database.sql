-- What the agent finds, in SQLite's dialect. Every episode gets a database of its own.
CREATE TABLE customer (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    city TEXT NOT NULL
);

CREATE TABLE purchase (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customer (id),
    item TEXT NOT NULL,
    amount INTEGER NOT NULL
);

INSERT INTO customer VALUES
    (1, 'Lena', 'Bern'),
    (2, 'Omar', 'Graz'),
    (3, 'Ines', 'Bern');

INSERT INTO purchase VALUES
    (1, 1, 'pears', 3),
    (2, 2, 'apples', 10),
    (3, 1, 'apples', 2),
    (4, 3, 'plums', 5),
    (5, 2, 'pears', 1);
