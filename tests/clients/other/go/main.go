// Log in with franz-go or sarama, write a record and read it: CLIENT BOOTSTRAP MECHANISM USER PASSWORD TOPIC.
// The client sarama-v0 sends the messages of the mechanism without request headers, as old versions of sarama do.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	xdg "github.com/xdg-go/scram"
)

const timeout = 20 * time.Second

func main() {
	client, bootstrap, mechanism, user, password, topic := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6]
	var value string
	var err error
	if client == "franz-go" {
		value, err = franz(bootstrap, mechanism, user, password, topic)
	} else {
		value, err = shopify(client == "sarama-v0", bootstrap, mechanism, user, password, topic)
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("value:", value)
}

func franz(bootstrap, mechanism, user, password, topic string) (string, error) {
	chosen := map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: user, Pass: password}.AsMechanism(),
		"SCRAM-SHA-256": scram.Auth{User: user, Pass: password}.AsSha256Mechanism(),
		"SCRAM-SHA-512": scram.Auth{User: user, Pass: password}.AsSha512Mechanism(),
		"OAUTHBEARER":   oauth.Auth{Token: password}.AsMechanism(),
	}[mechanism]
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.SASL(chosen), kgo.RequestRetries(0),
		kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return "", err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		return "", err
	}
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(user)}).FirstErr(); err != nil {
		return "", err
	}
	fetches := client.PollFetches(ctx)
	if err := fetches.Err(); err != nil {
		return "", err
	}
	return string(fetches.Records()[0].Value), nil
}

type exchange struct {
	hash xdg.HashGeneratorFcn
	xdg  *xdg.ClientConversation
}

func (e *exchange) Begin(user, password, authzid string) error {
	client, err := e.hash.NewClient(user, password, authzid)
	if err == nil {
		e.xdg = client.NewConversation()
	}
	return err
}
func (e *exchange) Step(challenge string) (string, error) { return e.xdg.Step(challenge) }
func (e *exchange) Done() bool                            { return e.xdg.Done() }

type bearer string

func (b bearer) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(b)}, nil
}

func shopify(isBare bool, bootstrap, mechanism, user, password, topic string) (string, error) {
	config := sarama.NewConfig()
	config.ApiVersionsRequest = !isBare
	config.Producer.Return.Successes = true
	config.Metadata.Retry.Max = 0
	config.Net.SASL.Enable = true
	config.Net.SASL.Mechanism = sarama.SASLMechanism(mechanism)
	config.Net.SASL.User, config.Net.SASL.Password = user, password
	config.Net.SASL.Version = sarama.SASLHandshakeV1
	if isBare {
		config.Net.SASL.Version = sarama.SASLHandshakeV0
	}
	switch mechanism {
	case "SCRAM-SHA-256":
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &exchange{hash: sha256.New} }
	case "SCRAM-SHA-512":
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &exchange{hash: sha512.New} }
	case "OAUTHBEARER":
		config.Net.SASL.TokenProvider = bearer(password)
	}
	client, err := sarama.NewClient([]string{bootstrap}, config)
	if err != nil {
		return "", err
	}
	defer client.Close()
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return "", err
	}
	message := &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(user)}
	if _, _, err := producer.SendMessage(message); err != nil {
		return "", err
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return "", err
	}
	part, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return "", err
	}
	select {
	case found := <-part.Messages():
		return string(found.Value), nil
	case <-time.After(timeout):
		return "", fmt.Errorf("no record in time")
	}
}
