CREATE TABLE seller (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL
);

CREATE TABLE sale (
    id INTEGER PRIMARY KEY,
    seller_id INTEGER NOT NULL REFERENCES seller (id),
    day TEXT NOT NULL,
    product TEXT NOT NULL,
    cents INTEGER NOT NULL
);

INSERT INTO seller VALUES (1, 'Lena'), (2, 'Omar'), (3, 'Ines');

INSERT INTO sale VALUES
    (1, 1, '2023-12-03', 'kettle', 2450),
    (2, 3, '2023-12-19', 'teapot', 3900),
    (3, 1, '2024-01-08', 'cup', 650),
    (4, 2, '2024-01-09', 'teapot', 3900),
    (5, 1, '2024-01-30', 'kettle', 2450),
    (6, 2, '2024-02-14', 'cup', 650);
