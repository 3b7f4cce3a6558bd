"""A sandbox provider, where this machine permits one; and databases as a dump of 2023."""

from contextlib import closing
from urllib.parse import quote

import pytest

from intercode.databases.servers.private_server import mysql_recipe, start_mariadb
from intercode.errors import SandboxUnavailableError, UsageError
from intercode_paper.container_images import PaperImage
from intercode_paper.sql_server import open_databases
from intercode_sandbox import get_provider


@pytest.fixture(scope="session")
def provider():
    found = get_provider("native")
    try:
        found.start("host").close()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    return found


@pytest.fixture(scope="module")
def image(provider, tmp_path_factory):
    """The host's programs, and a small file system in `/data`."""
    script = tmp_path_factory.mktemp("image") / "setup_fs_9.sh"
    script.write_text(
        "mkdir -p /data/dir1 /data/empty/deeper\n"
        "echo hello > /data/a.txt; echo there > /data/dir1/b.txt\n"
        "echo old > /data/old.txt; touch -d '2023-05-02 UTC' /data/old.txt\n"
    )
    made = PaperImage(provider, f"host+{script}")
    yield made
    made.close()


DUMP = """\
CREATE USER 'admin'@'%' IDENTIFIED BY 'admin';
CREATE DATABASE IF NOT EXISTS `Zoo` /*!40100 DEFAULT CHARACTER SET utf8mb4 */;
USE `Zoo`;
DROP TABLE IF EXISTS `animal`;
CREATE TABLE `animal` (
  `Animal_ID` int NOT NULL AUTO_INCREMENT,
  `Name` text COLLATE utf8mb4_general_ci,
  `Kind` varchar(20) COLLATE utf8mb4_general_ci DEFAULT NULL,
  `Weight` decimal(6,2) DEFAULT NULL,
  `Born` date DEFAULT NULL,
  PRIMARY KEY (`Animal_ID`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
INSERT INTO `animal` VALUES (1,'Zoe','lion',190.50,'2020-02-29'),(2,'Abe','ape',80.00,NULL),
(3,'Éva','lion',NULL,'2021-01-01'),(4,'Bob','ape',75.25,'2019-12-31');
CREATE DATABASE IF NOT EXISTS `shop`;
USE `shop`;
CREATE TABLE `item` (`id` int NOT NULL, `label` varchar(9), PRIMARY KEY (`id`)) ENGINE=InnoDB;
INSERT INTO `item` VALUES (1,'hat');
"""


@pytest.fixture(scope="session")
def dump(tmp_path_factory):
    """What `mysqldump --databases` writes, of two databases."""
    path = tmp_path_factory.mktemp("dump") / "dbs.sql"
    path.write_text(DUMP)
    return path


@pytest.fixture(scope="session")
def mariadb():
    """A server's URL. Each test has databases of its own there: that is quicker than a server."""
    needs_mariadb()
    with closing(start_mariadb()) as started:
        args = started.connect_args
        socket = quote(str(args["unix_socket"]), safe="")
        yield f"mysql://{args['user']}:{quote(args['password'])}@localhost?unix_socket={socket}"


@pytest.fixture(params=["mysql", "sqlite"])
def databases(request, dump):
    """The dump's databases, pristine, on MariaDB and on SQLite."""
    engine = request.param if request.param == "sqlite" else request.getfixturevalue("mariadb")
    with closing(open_databases(engine, dump)) as opened:
        yield opened


def needs_mariadb():
    try:
        mysql_recipe()
    except UsageError as error:
        pytest.skip(str(error))
